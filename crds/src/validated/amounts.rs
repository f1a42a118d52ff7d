//! Quantities: parsed, compared, and filled in.

use std::collections::BTreeMap;

use super::{InvalidCluster, MAX_CATCH_UPS, MIN_MEMORY_WATERMARK, ResourceAmounts};
use crate::amount::{Amount, Quantity};

pub(super) fn parse_amount(field: &str, amount: &Amount) -> Result<Quantity, InvalidCluster> {
    amount.quantity().map_err(|source| InvalidCluster::Amount { field: field.to_owned(), source })
}

/// Fills in what is absent: a default request never exceeds a given limit, a default limit is never below a given request.
pub(super) fn parse_resources(
    requests: &BTreeMap<String, Amount>,
    limits: &BTreeMap<String, Amount>,
) -> Result<ResourceAmounts, InvalidCluster> {
    const DEFAULTS: [(&str, &str, &str); 2] = [("cpu", "200m", "2"), ("memory", "512Mi", "1Gi")];
    let mut resources = ResourceAmounts { requests: requests.clone(), limits: limits.clone() };
    for (resource, request, limit) in DEFAULTS {
        let (mut request, mut limit) = (Amount::new(request), Amount::new(limit));
        if let Some(given) = limits.get(resource)
            && parse_amount(&format!("spec.resources.limits.{resource}"), given)? < parse_amount("default", &request)?
        {
            request = given.clone();
        }
        if let Some(given) = requests.get(resource)
            && parse_amount(&format!("spec.resources.requests.{resource}"), given)? > parse_amount("default", &limit)?
        {
            limit = given.clone();
        }
        resources.requests.entry(resource.to_owned()).or_insert(request);
        resources.limits.entry(resource.to_owned()).or_insert(limit);
    }
    for (resource, request) in &resources.requests {
        let request_size = parse_amount(&format!("spec.resources.requests.{resource}"), request)?;
        let Some(limit) = resources.limits.get(resource) else { continue };
        if request_size > parse_amount(&format!("spec.resources.limits.{resource}"), limit)? {
            let (resource, request, limit) = (resource.clone(), request.clone(), limit.clone());
            return Err(InvalidCluster::RequestAboveLimit { resource, request, limit });
        }
    }
    for (resource, limit) in &resources.limits {
        if parse_amount(&format!("spec.resources.limits.{resource}"), limit)?.is_zero() {
            return Err(InvalidCluster::Zero(format!("spec.resources.limits.{resource}")));
        }
    }
    Ok(resources)
}

pub(super) fn parse_free_watermark(storage: &crate::spec::Storage) -> Result<Option<u64>, InvalidCluster> {
    let Some(watermark) = &storage.free_watermark else { return Ok(None) };
    let free = parse_amount("spec.storage.freeWatermark", watermark)?;
    if free > parse_amount("spec.storage.size", &storage.size)?.percent(50) {
        return Err(InvalidCluster::FreeWatermark { watermark: watermark.clone(), size: storage.size.clone() });
    }
    Ok(Some(free.whole()))
}

pub(super) fn parse_memory_watermark(percent: i32) -> Result<u8, InvalidCluster> {
    let percent_or_none = u8::try_from(percent).ok().filter(|percent| (MIN_MEMORY_WATERMARK..=100).contains(percent));
    percent_or_none.ok_or(InvalidCluster::MemoryWatermark(percent))
}

pub(super) fn parse_memory_budget(
    budget: Option<&Amount>,
    percent: u8,
    resources: &ResourceAmounts,
) -> Result<Option<u64>, InvalidCluster> {
    let Some(budget) = budget else { return Ok(None) };
    let size = parse_amount("spec.memory.budget", budget)?;
    if size.is_zero() {
        return Err(InvalidCluster::Zero("spec.memory.budget".into()));
    }
    if let Some(limit) = resources.limits.get("memory")
        && size >= parse_amount("spec.resources.limits.memory", limit)?.percent(percent)
    {
        return Err(InvalidCluster::MemoryBudget { budget: budget.clone(), percent, limit: limit.clone() });
    }
    Ok(Some(size.whole()))
}

pub(super) fn parse_catch_up_bandwidth(bandwidth: Option<&Amount>) -> Result<Option<u64>, InvalidCluster> {
    const FIELD: &str = "spec.replication.catchUpBandwidth";
    let Some(bandwidth) = bandwidth else { return Ok(None) };
    let rate = parse_amount(FIELD, bandwidth)?;
    if rate.is_zero() {
        return Err(InvalidCluster::Zero(FIELD.into()));
    }
    Ok(Some(rate.whole()))
}

pub(super) fn parse_max_catch_ups(count: i32) -> Result<u8, InvalidCluster> {
    let count_or_none = u8::try_from(count).ok().filter(|_| (1..=MAX_CATCH_UPS).contains(&count));
    count_or_none.ok_or(InvalidCluster::MaxCatchUps(count))
}
