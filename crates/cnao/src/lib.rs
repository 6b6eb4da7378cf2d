//! Network addons: the operator, and what it deploys.
