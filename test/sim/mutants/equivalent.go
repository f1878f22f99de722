package main

// equivalent are mutants that change nothing that anybody can see, by their names, and why.
var equivalent = map[string]string{}
