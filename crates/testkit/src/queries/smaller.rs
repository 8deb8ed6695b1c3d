//! Smaller queries to try in place of one that fails.

use super::ast::{Expr, Limit, Query, Select};

impl Query {
    /// Queries with one part removed, the largest parts first. Not all of them are valid.
    pub fn smaller(&self) -> Vec<Query> {
        let mut found = Vec::new();
        let mut offer = |change: &dyn Fn(&mut Query)| {
            let mut query = self.clone();
            change(&mut query);
            found.push(query);
        };
        if self.selects.len() > 1 {
            (0..self.selects.len()).for_each(|place| offer(&|query| drop(query.selects.remove(place))));
        }
        if self.recursive.is_some() {
            offer(&|query| query.recursive = None);
            offer(&|query| query.recursive.iter_mut().for_each(|recursive| recursive.step = None));
            offer(&|query| query.recursive.iter_mut().for_each(|recursive| recursive.begin.filter = None));
        }
        if self.limit.is_some() {
            offer(&|query| query.limit = None);
        }
        let outputs = self.selects[0].outputs.len();
        for place in (0..outputs).filter(|_| outputs > 1) {
            offer(&|query| {
                query.selects.iter_mut().for_each(|select| drop(select.outputs.remove(place)));
                if let Some(Limit::Sorted(.., orders)) = &mut query.limit {
                    orders.remove(place);
                }
            });
        }
        for (place, select) in self.selects.iter().enumerate() {
            for smaller in select.smaller() {
                offer(&|query| query.selects[place] = smaller.clone());
            }
        }
        found
    }
}

impl Select {
    fn smaller(&self) -> Vec<Select> {
        let mut found = Vec::new();
        for place in 0..self.from.joins.len() {
            let mut select = self.clone();
            select.from.joins.remove(place);
            found.push(select);
        }
        if let Some(filter) = &self.filter {
            found.push(Select { filter: None, ..self.clone() });
            let filters = filter.smaller().into_iter();
            found.extend(filters.map(|filter| Select { filter: Some(filter), ..self.clone() }));
        }
        if self.distinct {
            found.push(Select { distinct: false, ..self.clone() });
        }
        for place in 0..self.group_by.len() {
            let mut select = self.clone();
            select.group_by.remove(place);
            found.push(select);
        }
        for (place, join) in self.from.joins.iter().enumerate() {
            for on in join.on.smaller() {
                let mut select = self.clone();
                select.from.joins[place].on = on;
                found.push(select);
            }
        }
        for (place, output) in self.outputs.iter().enumerate() {
            for expr in output.expr.smaller() {
                let mut select = self.clone();
                select.outputs[place].expr = expr;
                found.push(select);
            }
        }
        found
    }
}

impl Expr {
    fn smaller(&self) -> Vec<Expr> {
        let again = |inner: &Expr, whole: &dyn Fn(Box<Expr>) -> Expr| {
            inner.smaller().into_iter().map(|inner| whole(Box::new(inner))).collect::<Vec<_>>()
        };
        match self {
            Self::Column(..) | Self::Literal(_) | Self::Over(..) => Vec::new(),
            Self::Binary(left, operator @ ("and" | "or"), right) => {
                let mut found = vec![(**left).clone(), (**right).clone()];
                found.extend(again(left, &|left| Self::Binary(left, operator, right.clone())));
                found.extend(again(right, &|right| Self::Binary(left.clone(), operator, right)));
                found
            }
            Self::Binary(left, operator, right) => {
                let mut found = again(left, &|left| Self::Binary(left, operator, right.clone()));
                found.extend(again(right, &|right| Self::Binary(left.clone(), operator, right)));
                found
            }
            Self::Not(inner) => {
                let mut found = vec![(**inner).clone()];
                found.extend(again(inner, &Self::Not));
                found
            }
            Self::Test(inner, test) => {
                let mut found = vec![(**inner).clone()];
                found.extend(again(inner, &|inner| Self::Test(inner, test)));
                found
            }
            Self::Cast(cast, inner, data_type) => {
                let mut found = vec![(**inner).clone()];
                found.extend(again(inner, &|inner| Self::Cast(cast, inner, data_type)));
                found
            }
            Self::In(inner, list, negated) => {
                let without = |place: usize| {
                    let mut list = list.clone();
                    list.remove(place);
                    Self::In(inner.clone(), list, *negated)
                };
                (0..list.len()).filter(|_| list.len() > 1).map(without).collect()
            }
            Self::Between(inner, low, high, false) => vec![
                Self::Binary(inner.clone(), ">=", low.clone()),
                Self::Binary(inner.clone(), "<=", high.clone()),
            ],
            Self::Between(inner, low, high, true) => vec![
                Self::Binary(inner.clone(), "<", low.clone()),
                Self::Binary(inner.clone(), ">", high.clone()),
            ],
            Self::InSelect(inner, select, negated) => {
                let selects = select.smaller().into_iter();
                selects.map(|select| Self::InSelect(inner.clone(), Box::new(select), *negated)).collect()
            }
            Self::Exists(select, negated) => {
                select.smaller().into_iter().map(|select| Self::Exists(Box::new(select), *negated)).collect()
            }
            Self::Call(_, arguments) => arguments.clone(),
        }
    }
}
