"""The paper's experiments on the Gaussian random effects model, judged against the exact log evidence."""
