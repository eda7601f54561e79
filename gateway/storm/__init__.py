"""The storm lab: how calls, tools and policies behave under stress, in virtual time or against real processes.

`scenario` says what a storm is, `virtual` and `live` are the two engines that run one, `measure` turns what was recorded
into figures, `judge` holds them to what the scenario claims, `report` writes it all down.
"""
