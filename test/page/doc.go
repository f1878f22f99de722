// Package page shows the page of GPUs in Chromium, as people see and use it: what
// stands there, by mouse and by keyboard, light and dark, at each width.
package page
