package routes
