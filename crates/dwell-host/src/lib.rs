// SPDX-License-Identifier: MIT OR Apache-2.0
//! What commands need beside the engine, and a program that uses the library does not.
//!
//! The probe measures a device and keeps its profile. Settings say what a person wants. A
//! statistics page shows other processes what this one does, and carries their orders to it.
//! Capabilities tell what works on this machine.
#![deny(unsafe_code)]

pub mod capability;
pub mod places;
pub mod plan;
pub mod probe;
pub mod profile;
pub mod settings;
pub mod stats_page;
