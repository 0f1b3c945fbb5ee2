"""Iterations to change points: is this residual a lasting slowdown?"""
