"""The domain: what an edge-cloud system consists of, what is asked, and what is known of it."""
