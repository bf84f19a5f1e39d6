"""Tests of graphs that outlast a process."""
