"""The sub-commands that read a finished sweep's folder: its statistics, computed anew from the artifacts.

They compute what the fixtures compute, with the same functions, and print the report's entries of it. They run no
agent and import no suite. ``rescore`` adds results of further evaluators to the records and ``override`` an operator's
score; the others change no record. Commands that need the same lie in one module, and the command line loads only the
module of the one that is run: most of a short command's time is imports.
"""
