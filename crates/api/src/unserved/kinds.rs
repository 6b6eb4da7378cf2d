//! Kinds that are served and that no controller acts on.

/// A kind without a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its API group.
    pub group: &'static str,
    /// Its resource.
    pub plural: &'static str,
    /// Its name.
    pub kind: &'static str,
    /// What to do instead.
    pub remedy: &'static str,
}

/// Each with what to do instead.
pub const KINDS: &[Kind] = &[Kind {
    group: "plugin.kubevirt.io",
    plural: "plugins",
    kind: "Plugin",
    remedy: "there are no plugins of components",
}];

impl Kind {
    /// What a user reads who makes one.
    pub fn warning(&self) -> String {
        format!("{} is stored, and no controller acts on it in this version: {}", self.kind, self.remedy)
    }
}
