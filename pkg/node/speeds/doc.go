// Package speeds provides relative speeds of GPU models, for pods that prefer a fast or a slow one. A speed is
// a percentage of an A100. It orders models and predicts no run time. An administrator's file takes precedence
// over the default table, model by model.
package speeds
