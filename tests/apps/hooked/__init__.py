"""An app that hooks into everything: receivers of all signals, middleware, and metadata for every
send.
"""
