"""From a trained model to scores: quantized tables, export, its verification, prediction, and a C++ program that scores."""
