// Package kueue holds the sample for Kueue to what Kueue itself checks: the
// functions behind its webhooks, and how it counts what a job asks for. The
// schemas of its custom resources are checked in test/e2e, by a real API server.
package kueue
