"""Raw values → ids and dense values, as the manifest states them."""
