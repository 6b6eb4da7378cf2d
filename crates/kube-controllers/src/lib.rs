//! kube-controllers
