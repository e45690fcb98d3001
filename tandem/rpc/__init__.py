"""The only shared grpc code: conversion, clients, lifecycle, deadlines, status mapping.

Must not import torch or transformers.
"""
