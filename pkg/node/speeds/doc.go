// Package speeds says how fast models of GPU are, relative to one another, for pods that prefer one.
//
// # Decisions
//
// It is per cent of an A100, and for an order, not for a forecast. A file of the administrator's goes
// before what is known here, model by model.
package speeds
