package api

// Update is the flag -update, for tests from outside of the package.
var Update = update
