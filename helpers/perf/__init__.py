"""Measuring performance: running perf_analyzer, what a measurement is, and when it can be
trusted.
"""
