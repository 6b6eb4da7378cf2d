//! Which images are being pulled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// One pull of an image at a time; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Images {
    pub(crate) pulling: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
}
