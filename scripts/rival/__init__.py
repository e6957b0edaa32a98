"""FuxiCTR beside Persia: the same samples, the same networks, the same settings."""
