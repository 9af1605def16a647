"""Rival methods, one a file, that train on the same template, data and budget through the same objective."""
