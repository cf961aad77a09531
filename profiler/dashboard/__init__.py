"""The app: `store` holds what is loaded, `state` what the link says, `components` what pages share."""
