# Redraws the pictures of the documentation and compares them with those in docs/img.
#   cmake -DTRIVET=… -DSOURCE=… -DFOLDER=… -P same_pictures.cmake
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${SOURCE}/docs/draw.sh ${TRIVET} ${FOLDER} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB drawn RELATIVE ${FOLDER} ${FOLDER}/schedule-*.svg ${FOLDER}/explain-*.svg)  # a fit's last digits may differ
file(GLOB committed RELATIVE ${SOURCE}/docs/img ${SOURCE}/docs/img/schedule-*.svg ${SOURCE}/docs/img/explain-*.svg)
if(NOT drawn STREQUAL committed)
  message(FATAL_ERROR "docs/draw.sh draws ${drawn}, docs/img has ${committed}")
endif()
foreach(picture ${drawn})
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${FOLDER}/${picture} ${SOURCE}/docs/img/${picture}
                  RESULT_VARIABLE differs)
  if(differs)
    message(FATAL_ERROR "docs/img/${picture} is not what the program draws now: run docs/draw.sh")
  endif()
endforeach()
