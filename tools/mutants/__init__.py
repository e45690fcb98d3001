"""Mutation testing: which small changes of the pure rooms would no test notice?"""
