// Package page serves the scheduler's web page, which shows the fleet by GPU and the waiting pods. It also serves
// the records of decisions. The scheduler is gpumem-scheduler or gpumem-extender.
//
// # Invariants
//
//   - The package only reads, and responds only to GET and HEAD. The page shows the scheduler's cache, and the facts
//     that package nodefilter derives about nodes and waiting pods, as kubectl inspect gpumem does.
//   - The page loads nothing from other hosts. All its files are embedded, and its
//     Content-Security-Policy forbids other hosts.
//   - The server accepts only requests whose Host header names the loopback. A request with another name
//     could be a website's attempt to read the page through a visitor's browser.
//   - The page reads the used memory from the device plugins only while somebody views it, and from each plugin at
//     most once in 15 seconds. The values affect no scheduling decision. A GPU that no plugin reports has no value.
//   - The page identifies the device plugins by their labels in the process's own namespace. This is safe: a user
//     who may create pods in this namespace could replace gpumem itself.
//
// # Decisions
//
// The page has a separate port. Users forward this port to their machine, and any website in their browser can then
// send requests to it. gpumem-extender's own port, whose verbs bind pods, must not be exposed to websites.
//
// The page polls every two seconds, and receives the fleet only if it has changed. The server computes
// the fleet at most once per second, for all clients together.
//
// The page connects to the addresses of the device plugins' pods, not through the API server's proxy: the proxy would
// need access to every port of every pod in the namespace. If the cluster enforces network policies, the chart's
// policies allow these connections while the page is enabled.
//
// The front end has three files that browsers read without a build or a framework. It renders only the
// visible nodes, so thousands of nodes cost as much as one screen. Names come from other users'
// objects, so the front end sets them as text, and never as HTML.
package page
