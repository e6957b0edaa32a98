"""FuxiCTR and Persia: the same samples, the same networks, the same settings."""
