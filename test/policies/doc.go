// Package policies holds the chart's admission policies to what they are to refuse, without a
// cluster: they are read from the chart's golden files and evaluated by the API server's own
// library. That a real API server takes them, and matches them to the requests that they are
// about, is seen in test/e2e.
package policies
