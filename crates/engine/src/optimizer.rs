//! The rules that optimize physical plans: DataFusion's, made safe, and ours.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::join_selection::JoinSelection;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;

use crate::cluster::cost::ways::FastestStrategies;
use crate::files::PruneWithoutFloats;
use crate::stop::YieldWhereRowsMultiply;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The rules for a query over several nodes: `ways` chooses how its joins and aggregations run.
pub(crate) fn rules_for(ways: FastestStrategies) -> Vec<Rule> {
    let mut rules = rules();
    let selection = rules.iter().position(|rule| rule.name() == JoinSelection::new().name());
    rules.insert(selection.map_or(0, |selection| selection + 1), Arc::new(ways));
    rules
}

/// All rules, in order.
pub(crate) fn rules() -> Vec<Rule> {
    let safe = |rule: Rule| -> Rule {
        let is_pushdown = rule.name().starts_with(FilterPushdown::new().name());
        if is_pushdown { Arc::new(WhereNamesAreUnique(rule)) } else { rule }
    };
    let mut rules: Vec<Rule> = PhysicalOptimizer::new().rules.into_iter().map(safe).collect();
    rules.push(Arc::new(PruneWithoutFloats));
    rules.push(Arc::new(YieldWhereRowsMultiply));
    rules
}

/// Applies a rule only to plans in which no operator has two columns of the same name.
///
/// Operators of DataFusion 55.2 look up columns by name when they push conditions down to their
/// inputs. In a join of tables with columns `t.o` and `u.o`, a condition on one is applied to the
/// other, and rows of files are lost. Without the rule more files and row groups are read; the
/// conditions of WHERE have been pushed down to the tables before.
#[derive(Debug)]
struct WhereNamesAreUnique(Rule);

impl PhysicalOptimizerRule for WhereNamesAreUnique {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        options: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut is_unique = true;
        plan.apply(|plan| {
            let schema = plan.schema();
            let mut names = HashSet::with_capacity(schema.fields().len());
            is_unique = schema.fields().iter().all(|field| names.insert(field.name()));
            Ok(if is_unique { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        })?;
        if is_unique { self.0.optimize(plan, options) } else { Ok(plan) }
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}
