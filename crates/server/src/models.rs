//! Lists models of pages, with the names of the files that have them.

use pagefold_engine::pool::{Modelled, Pool, Survey};

use crate::control::ModelFigures;
use crate::failure::Result;
use crate::{engine_errors, names, pool_errors};

/// Returns the models of an open pool, and the files that have them or wait for one.
pub fn figures(pool: &Pool) -> Result<Vec<ModelFigures>> {
    let doing = || format!("cannot tell the models of pool {}", pool.name());
    let all = pool.modelled().map_err(|error| engine_errors::failed(doing(), &error))?;
    let objects = all.iter().filter_map(|one| one.object.map(|object| (one.dataset, object)));
    let files = pool_errors::names_of_objects(pool, objects);
    let name_of = |one: &Modelled| match one.object {
        Some(object) => files.get(&(one.dataset, object)).cloned().unwrap_or_default(),
        None => {
            let dataset = pool.path_of(one.dataset).unwrap_or_default();
            format!("{}: logs", names::full(pool.name(), &dataset))
        }
    };
    Ok(all.iter().map(|one| of_one(name_of(one), one)).collect())
}

fn of_one(file: String, one: &Modelled) -> ModelFigures {
    let model = one.model;
    ModelFigures {
        file,
        model: model.map(|model| model.id),
        codec: model.map(|model| Survey::codec_name(model.codec.id())),
        model_bytes: model.map_or(0, |model| model.stored_bytes),
        learned: model.map_or(0, |model| model.learned),
        sampled_pages: model.map_or(0, |model| model.sampled_pages),
        learned_pages: model.map_or(0, |model| model.object_pages),
        record_bytes: model.map_or(0, |model| model.record_bytes),
        pages: one.pages,
        coded_pages: one.coded_pages,
        coded_bytes: one.coded_bytes,
        other_pages: one.other_pages,
        waits: one.waits,
    }
}
