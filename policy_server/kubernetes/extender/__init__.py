"""The scheduler extender: kube-scheduler asks over HTTP which nodes may take a pod, and how good each one is."""
