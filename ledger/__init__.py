"""The reservation ledger: values, admission and durable storage, usable without axern."""
