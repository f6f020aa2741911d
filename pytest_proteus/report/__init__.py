"""The JSON section of a session, its schema, and the texts made from it.

``build`` makes the section from the artifacts on disk, ``models`` is its shape and reads it back, ``terminal`` and
``markdown`` turn it into text. Nothing here runs a cell, decides a gate or imports pytest.
"""
