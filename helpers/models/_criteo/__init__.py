"""What DLRM and DCNv2 share: Criteo's click logs, the tables of their features, and the metric."""
