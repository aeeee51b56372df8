"""launch: from a call's arguments to bound launches and graphs of them."""
