"""Problems, runs and studies."""
