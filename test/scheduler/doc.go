// Package scheduler has kube-scheduler itself, in process and set up as the chart sets
// it up, ask the extender as the product puts it together. Between them and the tests
// is an API server in memory, with the parts of the real one that decide when a pod is
// tried again: resource versions, field selectors, and watches that go on from where
// they were.
//
// kube-scheduler tries a pod again that an extender has refused when its own watches
// tell of a change, and the extender answers by what its watches have told. So a test
// can hold back what the extender hears, and take the API server away from either.
//
// The same cases are run with the plugin of gpumem-scheduler in place of the extender. It
// follows kube-scheduler's own informers, of which a test can hold back what they tell the
// plugin's cache.
package scheduler
