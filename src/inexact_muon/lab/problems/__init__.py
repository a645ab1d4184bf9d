"""Problems to optimise; `matrix` has those whose constants are known."""
