"""The words of the protocol: frozen records that every floor above speaks with."""
