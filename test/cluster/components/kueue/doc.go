// Package kueue holds the sample for Kueue to what Kueue itself checks: the
// functions behind its webhooks, and how it counts what a job asks for. Kueue's
// program is a tool of this module; test/e2e runs it.
package kueue
