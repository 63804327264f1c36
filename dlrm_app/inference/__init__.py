"""From a trained model to scores: quantized tables, export, its proof, prediction, and a C++ program that scores."""
