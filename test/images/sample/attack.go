package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// attacks is what a program does that means no good.
type attacks struct{ flood, remove, fill, serve, text string }

func attackFlags() *attacks {
	var a attacks
	flag.StringVar(&a.flood, "flood", "", "a URL to fetch again and again, many at a time")
	flag.StringVar(&a.remove, "remove", "", "a file to remove")
	flag.StringVar(&a.fill, "fill", "", "a file to write until that fails, 1280 MiB at most")
	flag.StringVar(&a.serve, "serve", "", "an address at which every request is answered with -text")
	flag.StringVar(&a.text, "text", "", "the text of -serve")
	return &a
}

// run does what it is to do, and prints what came of it. What takes long goes on meanwhile.
func (a *attacks) run(ctx context.Context) {
	if a.remove != "" {
		fmt.Println("remove:", a.remove, os.Remove(a.remove))
	}
	if a.fill != "" {
		mib, err := fill(a.fill)
		fmt.Println("fill:", a.fill, mib, "MiB", err)
	}
	if a.flood != "" {
		flood(ctx, a.flood)
		fmt.Println("flood:", a.flood)
	}
	if a.serve != "" {
		server := &http.Server{Addr: a.serve, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, a.text)
		})}
		go func() { fmt.Println("serve:", server.ListenAndServe()) }()
	}
}

func fill(path string) (mib int, err error) {
	const most = 1280
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for block := make([]byte, 1<<20); mib < most; mib++ {
		if _, err := file.Write(block); err != nil {
			return mib, err
		}
	}
	return mib, nil
}

// flood reads what a URL answers, 256 at a time, for as long as the program runs.
func flood(ctx context.Context, url string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	for range 256 {
		go func() {
			for ctx.Err() == nil {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
				if err != nil {
					return
				}
				response, err := client.Do(request)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
			}
		}()
	}
}
