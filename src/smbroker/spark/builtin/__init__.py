"""The pipelines that come with the product, written as anyone would write theirs."""
