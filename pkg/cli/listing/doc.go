// Package listing prints rows as a table, as JSON or YAML, by name or in custom columns, sorted, and
// again when they change.
//
// # Invariants
//
//   - A View defines the rows and columns of a list. The Flags select format, order and rows. No list
//     has other formats.
//   - Objects that cannot be read are reported on stderr after the rows. While the pods cannot be read,
//     no row counts as ended.
//
// # Decisions
//
// A watch prints a row again only if one of its visible cells changes. Columns that show an age do not
// count.
//
// --sort-by takes a field of the JSON form, which -o json shows, so users need not learn names of
// columns.
package listing
