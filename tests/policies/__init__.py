"""The packs of rules that come with Seawall."""
