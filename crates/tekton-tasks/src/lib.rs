//! The steps of the Tekton tasks.
