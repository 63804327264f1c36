"""Scores from a trained model: quantized tables, export, verification, prediction, serving."""
