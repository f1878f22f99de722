// The page of GPUs in Chromium. A module of its own, for nothing else than tests
// needs a browser.
module github.com/gpumem/gpumem/test/page

go 1.26.0

replace github.com/gpumem/gpumem => ../..

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.23.0
	github.com/gpumem/gpumem v0.0.0-00010101000000-000000000000
)

require github.com/go-json-experiment/json v1.27.2 // indirect
