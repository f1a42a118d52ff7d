module understudy.dev/e2e/images

go 1.24.0
