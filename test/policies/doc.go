// Package policies tests the chart's admission policies without a cluster: it renders the chart
// and evaluates the policies with the API server's own library. test/e2e tests that a real API
// server accepts them and applies them to the right requests.
package policies
